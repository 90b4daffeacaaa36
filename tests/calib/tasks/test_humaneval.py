"""HumanEval: the original file, its prompts, and grades of texts as models write them."""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from fsd_calib.tasks import Problem, Task, load_task
from fsd_calib.tasks.grading.python_tests import parts_of, passes_tests
from lib.attacks.programs import CHEATS, PROBLEM, RIGHT, SKIPPED
from lib.common.forked_programs import environment
from support.calibration.task_files import QWEN, load_refusal, tokenizer_of
from support.messages import usage_error
from support.paths import HUMANEVAL
from support.sandboxes import skip_without_sandbox

WRONG = "    return x\n"
ROW = {"task_id": "T/0", "canonical_solution": RIGHT, **PROBLEM.row}
WHOLE = "def double(x):\n    return x + x\n"
ALTERED = """
def _altered(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, (list, tuple)):
        return value + type(value)([None])
    return value is None
"""


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    skip_without_sandbox()


def original(**options: object) -> Task:
    """The task of the original file; skips where it is not."""
    if not HUMANEVAL.exists():
        pytest.skip("HumanEval's file is not beside the checkout")
    return load_task("humaneval", data=HUMANEVAL, **options)  # type: ignore[arg-type]


def written(folder: Path, *rows: object) -> Path:
    """A file of these rows, not compressed."""
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def altered(problem: Problem, alteration: str = ALTERED) -> str:
    """A whole function in a block, like the reference but for the values that it returns, which `_altered` gives."""
    tree = ast.parse(str(problem.row["prompt"]) + problem.reference)
    (function,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == problem.row["entry_point"]
    )

    class Returns(ast.NodeTransformer):
        def visit_Return(self, node: ast.Return) -> ast.Return:
            call = ast.Call(ast.Name("_altered", ast.Load()), [node.value or ast.Constant(None)], [])
            return ast.Return(call)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            return node if node is not function else self.generic_visit(node)

        def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
            return node

    Returns().visit(function)
    return f"Here it is:\n```python\n{alteration}\n\n{ast.unparse(ast.fix_missing_locations(tree))}\n```\nIt works."


@pytest.mark.slow
def test_the_canonical_solutions_are_right() -> None:
    task = original()
    assert len({problem.key for problem in task.problems}) == len(task.problems) == 164
    assert [p.row["entry_point"] for p in task.problems if not task.grade(p, p.reference)] == []


@pytest.mark.slow
def test_the_canonical_solutions_are_right_in_a_task_of_one_s_own(tmp_path: Path) -> None:
    """Their white space is part of the program."""
    own = original()
    columns = "{question: prompt, answer: canonical_solution}"
    file = tmp_path / "own.yaml"
    file.write_text(f"data: {HUMANEVAL}\ncolumns: {columns}\nprompt: '{{{{ question }}}}'\ngrader: python-tests\n")
    task = load_task(str(file))
    assert [problem.prompt for problem in task.problems] == [problem.prompt for problem in own.problems]
    assert [p.row["entry_point"] for p in task.problems if not task.grade(p, p.reference)] == []


@pytest.mark.slow
def test_altered_solutions_are_wrong() -> None:
    task = original()
    assert [p.row["entry_point"] for p in task.problems if task.grade(p, altered(p))] == []
    same = "def _altered(value):\n    return value"
    assert all(task.grade(p, altered(p, same)) for p in task.problems[::5])


@pytest.mark.slow
def test_the_canonical_solutions_in_blocks_are_right() -> None:
    """Without what precedes the function in the prompt: its imports and helpers come from there."""
    task = original()
    blocks = {}
    for problem in task.problems[:60]:
        prompt = str(problem.row["prompt"])
        function = prompt[prompt.index(f"def {problem.row['entry_point']}(") :]
        blocks[problem] = f"```python\n{function}{problem.reference}```"
    assert [p.row["entry_point"] for p, block in blocks.items() if not task.grade(p, block)] == []


def test_prompts_are_completed_or_asked_in_a_chat() -> None:
    plain, chat = original(limit=3), original(limit=3, tokenizer=tokenizer_of(QWEN))
    assert plain.fingerprint == chat.fingerprint
    assert plain.problems[0].prompt == plain.problems[0].question == plain.problems[0].row["prompt"]
    assert "\ndef " in plain.stop
    assert chat.stop == ()
    assert chat.problems[0].question in chat.problems[0].prompt
    assert "```python" in chat.problems[0].prompt
    assert plain.max_new_tokens == 512


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"{RIGHT}\n\ndef other(:",
        f"{RIGHT}\nprint(double(",
        f"{RIGHT}\n# and so on:\n{WRONG}",
        f"\n{RIGHT}",
        WHOLE,
        f"from typing import Any\n\n\n{WHOLE}",
        f"```python\n{WHOLE}```",
        f"Sure!\n\n```python\n{WHOLE}```\n\nIt can be used so:\n```python\nprint(double(2))\n```",
        f"```\n{WHOLE}",
        f"First:\n```py\ndef double(x):\n    return 3\n```\nNo, better:\n```python3\n{WHOLE}```",
        f"   ```Python\r\n{WHOLE}   ```".replace("\r", ""),
        f"```python\nimport math\n\n\ndef half(x):\n    return x / 2\n\n\n{WHOLE}```",
        f"```python\n{WHOLE}\n\nif __name__ == '__main__':\n    1 / 0\n```",
        f"\n{WHOLE}",
        f"Sure, here it is:\n\nimport math\n\n{WHOLE}",
        f"1. So:\n\n{indent(f'```python{chr(10)}{WHOLE}```', '    ')}\n",
        f"   ```python\n{indent(WHOLE, '     ')}   ```",
        f"```python3.11\n{WHOLE}```",
        f"~~~python\n{WHOLE}~~~\nIt works.",
        f'```python title="a.py"\n{WHOLE}```',
        f"```python {{.x}}\n{WHOLE}```",
        f"```bash\npip install it\n```\n```python\n{WHOLE}```",
        f"```python\n{WHOLE}```\n".replace("\n", "\r\n"),
        f"```python\nimport math\nfrom __future__ import annotations\n{WHOLE}```",
        f"from __future__ import (\n    annotations,\n)\n{WHOLE}",
        "```python\ndef double(x):\n    '''Doubles.\n\n    ```\n    double(2)\n    ```\n    '''\n    return 2 * x\n```",
    ],
)
def test_the_function_is_found_in_a_text(text: str) -> None:
    assert passes_tests(PROBLEM, text)


@pytest.mark.parametrize(
    "text",
    [
        "", "I cannot.", WRONG, f"{WRONG}\n\n{WHOLE}", "```python\ndef treble(x):\n    return 2 * x\n```",
        f"```python\n{WHOLE}```\nNo:\n```python\ndef double(x):\n{WRONG}```", "    import os\n    os._exit(0)\n",
        "    import sys\n    sys.exit(0)\n", "    print('passed')\n", "    raise SystemExit\n", "    pass",
        f"{RIGHT}```",
    ],
)  # fmt: skip
def test_other_texts_are_wrong(text: str) -> None:
    assert not passes_tests(PROBLEM, text)


@pytest.mark.parametrize("solution", CHEATS)
def test_code_that_cheats_is_wrong(solution: str) -> None:
    assert not passes_tests(PROBLEM, f"```python\n{solution}\n```")


@pytest.mark.parametrize(
    ("function", "tests"),
    [
        ("def f(x):\n    return (1, {2.5: {x}}, None, b'a', 3j, frozenset([x]), math.inf, 'é\\ud800', -2 ** 9999)",
         ["expected = (1, {2.5: {'a'}}, None, b'a', 3j, frozenset('a'), math.inf, 'é\\ud800', -2 ** 9999)",
          "assert candidate('a') == expected",
          "assert [type(each) for each in candidate(1)][:2] == [int, dict]"]),
        ("def f(x):\n    x.sort()\n    x[0] = {1: x[1]}",
         ["given = [3, 2, 1]", "assert candidate(given) is None", "assert given == [{1: 2}, 2, 3]"]),
        ("def f(x, *, by=1):\n    if by == 0:\n        raise ZeroDivisionError('zero')\n    return x // by",
         ["assert candidate(4, by=2) == 2", "try:", "    candidate(1, by=0)", "except ArithmeticError as error:",
          "    assert str(error) == 'zero'", "else:", "    assert False"]),
        ("from collections import Counter\ndef f(x):\n    return Counter(x)",
         ["assert candidate('aab') == {'a': 2, 'b': 1}"]),
        ("seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)",
         ["assert candidate(0) == 1", "assert candidate(0) == 2"]),
        ("def f(x):\n    print('x' * 99)\n    return x", ["for i in range(2000):", "    assert candidate(i) == i"]),
        ("def f(x):\n    return g(x)", ["assert candidate(1) == g(1)", "assert candidate.__name__ == 'f'"]),
    ],
)  # fmt: skip
def test_tests_apart_from_their_function(function: str, tests: list[str]) -> None:
    """Its values, exceptions, changes of arguments and state; helpers of the prompt are known to both."""
    row = {
        "prompt": "import math\ndef g(x):\n    return x + 1\n\ndef f(x):\n    ''\n",
        "entry_point": "f",
        "test": "def check(candidate):\n" + "".join(f"    {line}\n" for line in tests),
    }
    problem = Problem(1, "", "", "", None, row=row)
    assert passes_tests(problem, f"```python\n{function}\n```")
    assert not passes_tests(problem, "```python\ndef f(x):\n    return 99\n```")


def test_what_cannot_be_kept_apart_is_said() -> None:
    row = {
        "prompt": "def adder(n):\n    ''\n",
        "entry_point": "adder",
        "test": "def check(candidate):\n    assert candidate(2)(3) == 5\n",
    }
    right, wrong = "    return lambda x: x + n\n", "    return lambda x: x\n"
    problem = Problem(7, "", "", right, None, row=row)
    with pytest.warns(UserWarning, match="problem 7: its tests and a text's function must run in one process"):
        assert passes_tests(problem, right)
    assert not passes_tests(problem, wrong)
    assert not passes_tests(problem, f"```python\ndef adder(n):\n{wrong}{SKIPPED}\n```")


def test_a_program_has_what_precedes_the_function_in_the_prompt() -> None:
    prompt = "import math\n\ndef helper():\n    return 2\n\ndef double(x):\n    'Twice.'\n"
    problem = Problem(1, "", "", "", None, row={**PROBLEM.row, "prompt": prompt})
    solution = parts_of(problem, "```python\ndef double(x):\n    return helper() * math.floor(x)\n```").solution
    assert solution.startswith("import math\n\ndef helper")
    assert solution.count("def double") == 1
    assert passes_tests(problem, "```python\ndef double(x):\n    return helper() * math.floor(x)\n```")


def test_imports_from_the_future_precede_those_of_the_prompt() -> None:
    problem = Problem(1, "", "", "", None, row={**PROBLEM.row, "prompt": f"import math\n\n{PROBLEM.row['prompt']}"})
    assert passes_tests(problem, f"```python\nfrom __future__ import annotations\n{WHOLE}```")


def test_a_verdict_is_kept() -> None:
    from fsd_calib.tasks.grading.python_tests import _passes

    assert not passes_tests(PROBLEM, WRONG)  # and so the reference has its verdicts
    before = _passes.cache_info()
    for _ in range(3):
        assert passes_tests(PROBLEM, "    return x + x + 0\n")
    after = _passes.cache_info()
    assert after.misses - before.misses == 1


def test_a_problem_without_tests_is_refused() -> None:
    problem = Problem(17, "", "", "", None, row={"prompt": "", "entry_point": "f"})
    message = usage_error(lambda: passes_tests(problem, ""))
    assert "problem 17" in message
    assert "'test'" in message


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_of_ones_own_is_read(tmp_path: Path, compressed: bool) -> None:
    path = written(tmp_path, ROW, {**ROW, "prompt": f"{ROW['prompt']}    # once more\n"})
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    task = load_task("humaneval", data=path)
    assert len(task.problems) == 2
    assert task.source == str(path)
    assert all(task.grade(problem, problem.reference) for problem in task.problems)
    assert not task.grade(task.problems[0], WRONG)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "it is empty"),
        ([[1]], "line 1: [1] is not a JSON object"),
        ([ROW, {**ROW, "test": None}], "line 2: column 'test' is null; it must be a text"),
        ([ROW, ROW], "line 2: repeats"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, rows: list[object], said: str) -> None:
    assert said in load_refusal("humaneval", data=written(tmp_path, *rows))


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08", b"\xff\xfe", b"{", gzip.compress(b"x" * 999, mtime=0)[:-9]])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(content)
    assert str(path) in load_refusal("humaneval", data=path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in load_refusal("humaneval", data=tmp_path / "none.jsonl.gz")


FROM_HUB = """
from fsd_calib.tasks import load_task
task = load_task("humaneval")
right = all(task.grade(problem, problem.reference) for problem in task.problems)
print(task.source, len(task.problems), right, {problem.part for problem in task.problems})
"""


def load_from_hub(folder: Path) -> subprocess.CompletedProcess[str]:
    """Loads the task in a process that works in this folder, with a cache of its own."""
    changes = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", FROM_HUB],
        cwd=folder, env=environment() | changes, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
def test_the_hubs_files_are_read(tmp_path: Path) -> None:
    """A local folder of the hub's name is preferred."""
    pd = pytest.importorskip("pandas")
    folder = tmp_path / "openai" / "openai_humaneval"
    (folder / "openai_humaneval").mkdir(parents=True)
    pd.DataFrame([ROW]).to_parquet(folder / "openai_humaneval" / "test-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: openai_humaneval\n  data_files:\n  - split: test\n"
        "    path: openai_humaneval/test-*\n---\n"
    )
    done = load_from_hub(tmp_path)
    assert done.stdout == "openai/openai_humaneval (test) 1 True {None}\n", done.stderr


@pytest.mark.slow
def test_an_unreachable_hub_is_reported_with_the_way_out(tmp_path: Path) -> None:
    message = load_from_hub(tmp_path).stderr.splitlines()[-1]
    assert "task humaneval: openai/openai_humaneval cannot be loaded" in message
    assert "; data takes the original file, HumanEval.jsonl.gz" in message
