"""Studies of drives for which there is no daemon: optimal write size, write cost, profiles, theory.

`parts` replays a policy with only some of its levers, for the experiments of `papers` and `bench`.
"""
