"""One configuration through the whole compiler: passes at every depth, linking, code generation."""
