"""A clock that stands until a test moves it."""


class StandingClock:
    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_us(self) -> int:
        return 0

    def let_others_run(self) -> None:
        pass
