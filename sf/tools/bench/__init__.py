"""The measurements of `sf-bench`, one file per subject."""
