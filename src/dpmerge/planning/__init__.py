"""From a target (ε, δ) to a plan: candidates, the linear program, the search for weights, frontiers, design."""
