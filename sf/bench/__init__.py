"""What `sf-bench` measures, one file per subject."""
