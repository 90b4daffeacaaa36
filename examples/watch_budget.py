"""Decodes problems under a divergence budget and writes a page that shows T over time: python watch_budget.py"""

from fsd_calib import SpeculativeDecoder, Telemetry, adaptive, load_task
from fsd_data import pair_paths

decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
task = load_task("arithmetic", limit=200)
telemetry = Telemetry()
decoder.generate(
    [problem.prompt for problem in task.problems],
    task.max_new_tokens,
    temperature=0.6,
    stop=task.stop,
    batch_size=8,
    threshold=adaptive.DivergenceBudget(per_token=0.005),
    observer=telemetry,
)
rounds = telemetry.frame()
print(f"{len(rounds)} rounds, T from {rounds.threshold.iloc[0]:.3f} to {rounds.threshold.iloc[-1]:.3f} nats")
print(telemetry.save("watched.html", title="A budget of 0.005 nats a token"))
