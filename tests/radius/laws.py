"""Every law with a density, for the tests that hold for all of them: a new law is one line."""

from latentcal.radius import BallRadius, Chi, GammaRadius, StudentRadius

LAWS = {
    "chi 1": Chi(1),
    "chi 2": Chi(2),
    "chi 16": Chi(16),
    "chi 1000": Chi(1000),
    "chi 196608": Chi(196608),
    "ball 1": BallRadius(1),
    "ball 2": BallRadius(2),
    "ball 16": BallRadius(16),
    "ball 196608": BallRadius(196608),
    "gamma 1": GammaRadius(1),
    "gamma 5": GammaRadius(5),
    "gamma 196608": GammaRadius(196608),
    "student 1": StudentRadius(1, degrees_of_freedom=1.0),
    "student 2": StudentRadius(2, degrees_of_freedom=2.7),
    "student 16": StudentRadius(16, degrees_of_freedom=5),
    "student 784": StudentRadius(784, degrees_of_freedom=30),
    "student 196608": StudentRadius(196608, degrees_of_freedom=500),
}
