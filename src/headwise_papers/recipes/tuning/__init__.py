"""The parts of `finetune`: what it starts from, what it reads, and how it is judged."""
