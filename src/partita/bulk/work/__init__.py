"""The bulk verbs: what each of them does to an account, without its command line."""
