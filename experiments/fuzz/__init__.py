"""Every reader of text, files and numbers from outside, fed with what it does not expect. See docs/robustness.md."""
