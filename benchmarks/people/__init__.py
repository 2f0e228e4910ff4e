"""People with several rows: what protecting them costs in accuracy, in time and in memory."""
