"""What vLLM names of a grammar library that it imports for every grammar, and that is used for none here."""


class TokenEnforcer:
    """Nobody makes one."""
