"""Private answers over HTTP: engine, service, API, operator's page."""
