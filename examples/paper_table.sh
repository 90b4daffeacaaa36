#!/bin/sh
# The paper's table, accuracy and tokens a round by T, in its sampling, of a pair of yours or of the bundled one:
#     sh examples/paper_table.sh arithmetic
#     sh examples/paper_table.sh gsm8k,csqa,mmlu,humaneval --target BIG --draft SMALL --seeds 3 --part all --format latex
set -eu
tasks=$1
shift
exec fsd sweep --tasks "$tasks" --preset fsd-paper --score js --thresholds 0.1,0.2,0.3,0.4,0.5 --draft-length 5 "$@"
