"""Many trainings from one file: which flags vary, how values are searched, and where the runs go."""
