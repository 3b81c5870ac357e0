"""From a plan to text and machine code: render templates, compile them ahead of time, keep the results."""
