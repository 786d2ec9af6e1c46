"""Of Ray's experimental parts `experimental.state.api` alone."""
