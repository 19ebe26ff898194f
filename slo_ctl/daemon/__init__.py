"""The daemon: observe, decide, act, record and publish, once per epoch, until stopped."""
