"""What a run with several policies decides while it lasts: who plays whom, and who goes on from whom."""
