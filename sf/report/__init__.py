"""Pictures of a run, from the files that it has left."""
