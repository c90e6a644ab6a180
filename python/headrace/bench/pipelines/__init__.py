"""Dynamic pipelines, beside the tokenizer that they call: how fast, how much padding, and what a state costs."""
