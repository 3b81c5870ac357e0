"""What was measured: records, ratios, tables and pictures."""
