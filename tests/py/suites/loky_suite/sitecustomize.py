"""In every process of loky's tests, workers and scripts included: ours in the place of loky's executor."""

import loky_ours

loky_ours.install()
