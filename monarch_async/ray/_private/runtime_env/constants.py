"""The environment variable by which whoever starts a driver can hand it its job's configuration, as JSON."""

RAY_JOB_CONFIG_JSON_ENV_VAR = "RAY_JOB_CONFIG_JSON_ENV_VAR"
