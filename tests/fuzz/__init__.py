"""Any bytes for every parser of ours. Each test states what may come of them: which errors, how much, how long."""
