"""What people read of a study or of runs: tables, charts and the HTML report."""
