"""`slo-ctl.toml` and `conf.d/*.toml` as typed, checked settings."""
