"""Studies of drives that no daemon needs: optimal write size, write cost, profiles by several nodes, theory.

`parts` replays a policy with some of its levers only, for the experiments of `papers` and `bench`.
"""
