"""The transport of KV rows between servers that SGLang calls `mooncake`: for tests, between processes of a machine."""
