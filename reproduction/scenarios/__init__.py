"""The audit's scenarios: releases made to be attacked, the benign and the hostile ones of theory 4.4."""
