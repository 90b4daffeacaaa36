"""Tasks in YAML that would hang a run, fill its memory, or mean something else than they say."""

from __future__ import annotations

TASK = 'grader: exact\ndata: rows.jsonl\nprompt: "{{ question }}"\n'
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
_LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(99) %}{% endfor %}{% endfor %}" + (
    "{% endfor %}{{ question }}"
)
_RING = "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}{{ question }}"
# name -> the file, and a part of the line that refuses it
HOSTILE = {
    "yes": (TASK + "max_new_tokens: yes", "key 'max_new_tokens' is True; input should be a valid integer"),
    "octal": (TASK + "max_new_tokens: 010", "line 4: not YAML (010 is no plain whole number of at most 18 digits"),
    "minutes": (TASK + "max_new_tokens: 1:30", "line 4: not YAML (1:30 is no plain whole number"),
    "hexadecimal": (TASK + "max_new_tokens: 0x10", "line 4: not YAML (0x10 is no plain whole number"),
    "quoted": (TASK + "max_new_tokens: '8'", "key 'max_new_tokens' is '8'; input should be a valid integer"),
    "huge": (TASK + "max_new_tokens: 10000000", "key 'max_new_tokens' is 10000000; input should be less than or equal"),
    "long": (TASK + f"max_new_tokens: {'1' * 5000}", "is no plain whole number of at most 18 digits"),
    "half a character": (TASK + 'instruction: "\\uD800"', "line 4: not YAML ('\\ud800' holds half a character"),
    "aliases": (TASK + BOMB, "not YAML (it has more than 100,000 values"),
    "a ring": (TASK + "examples: &a [*a]", "not YAML (it has more than 100,000 values"),
    "depth": (TASK + f"examples: {'[' * 5000}{']' * 5000}", "it is nested too deeply"),
    "a list as a key": (TASK + "? [1]\n: 2", "line 4: not YAML ([1] cannot be a key"),
    "one key twice": (TASK + "grader: exact", "line 4: not YAML (key 'grader' is written twice"),
    "repetitions": (TASK + "extract: a{4294967295}", "key 'extract' is 'a{4294967295}'; is no regular expression that"),
    "groups": (TASK + f"extract: {'(' * 3000}{')' * 3000}", "is no regular expression that"),
    "eval": (TASK.replace("exact", "python") + "function: builtins.eval", "builtins.eval is of Python's own module"),
    "operator": (TASK.replace("exact", "python") + "function: operator.eq", "operator.eq is of Python's own module"),
    "timeit": (TASK.replace("exact", "python") + "function: timeit.timeit", "timeit.timeit is of Python's own module"),
    "passed on": (TASK.replace("exact", "python") + "function: mine.system", "mine.system is of Python's own module"),
    "loops": (TASK.replace("{{ question }}", _LOOPS), "its prompts cannot be rendered (it took more than 5 s of CPU"),
    "a text of terabytes": (
        TASK.replace("{{ question }}", "{{ question * 10 ** 13 }}"),
        "cannot be rendered (MemoryErr",
    ),
    "a large number": (
        TASK.replace("{{ question }}", "{{ question }}{{ 10 ** 5000 }}"),
        "key 'prompt': cannot be rend",
    ),
    "a power": (
        TASK.replace("{{ question }}", "{{ question }}{{ 9 ** (9 ** 9) }}"),
        "cannot be rendered (it took more",
    ),
    "a ring of macros": (TASK.replace("{{ question }}", _RING), "key 'prompt': cannot be rendered (maximum recursion"),
    "a random text": (TASK.replace("{{ question }}", "{{ question }}{{ lipsum() }}"), "'lipsum' is undefined"),
    "a random choice": (TASK.replace("{{ question }}", "{{ question | random }}"), "No filter named 'random'"),
    "half a prompt": (TASK.replace("{{ question }}", "{{ question }}{{ '\\\\uD800' }}"), "cannot be rendered ('utf-8'"),
    "single braces": (TASK.replace("{{ question }}", "{question}"), "its prompts name no column, so all are the same"),
}
