"""The work of campipe: messages in, messages out; no process, socket, YAML or wall clock of its own."""
