"""Recording a program that does not know of it: `tensorprobe run`, and the variables that do the same."""
