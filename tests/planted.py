"""What each planted fault must be caught by, and told as: the one table of both."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A fault of `faults.py`.

    Attributes:
        name: Of the class or function.
        rule: The rule that must notice.
        cause: Words of the diagnosis; empty where the evidence cannot show a cause.
    """

    name: str
    rule: str
    cause: str = ""

    @property
    def is_sampler(self) -> bool:
        """Whether it is one."""
        return self.rule.startswith("SHARD")


WRAPPERS = (
    Planted("NoBroadcast", "INIT-1", "never broadcast"),
    Planted("TrainableOnlyBroadcast", "INIT-1", "never broadcast"),
    Planted("NoBufferBroadcast", "INIT-2", "never broadcast"),
    Planted("StridedBroadcast", "INIT-1", "ignores its strides"),
    Planted("SourceIsGlobalRankZero", "INIT-1", "never broadcast"),
    Planted("SourceIsRankOne", "INIT-1", "the broadcast's source is rank 1"),
    Planted("AveragesAtTheStart", "INIT-1", "averaged instead of broadcast"),
    Planted("ReducesParameters", "GRAD-1", "own local gradient: never reduced"),
    Planted("LastBucketNotFlushed", "GRAD-1", "own local gradient: never reduced"),
    Planted("LargeParameterSkipped", "GRAD-1", "own local gradient: never reduced"),
    Planted("ReducesTheFirstStepOnly", "GRAD-1", "own local gradient: never reduced"),
    Planted("ForgetsTheTail", "GRAD-1", "own local gradient: never reduced"),
    Planted("NeverDivides", "GRAD-2", "summed, never divided"),
    Planted("DividesByTwo", "GRAD-2", "divided by 2, not by"),
    Planted("DividesTwice", "GRAD-2", "divided twice"),
    Planted("FlattensByStorage", "GRAD-2", "in channels_last order"),
    Planted("RoundsToBfloat16", "GRAD-2", "rounded to bfloat16"),
    Planted("TakesTheMaximum", "GRAD-2", "it is the maximum over the ranks"),
    Planted("LeavesTheLastRankOut", "GRAD-2", "with rank 1's gradient left out"),
    Planted("CountsRankZeroTwice", "GRAD-2", "rank 0's gradient counted twice"),
    Planted("DoublesTheMean", "GRAD-2", "accumulated once too often"),
    Planted("LosesTheGradient", "GRAD-2", "the gradient was lost"),
    Planted("SwapsEqualShapes", "GRAD-2", "of equal shape: swapped"),
    Planted("LeftoverBuffer", "GRAD-5", "it is the mean plus step 0's gradient"),
    Planted("OneStepLate", "GRAD-5", "it equals step 0's gradient: stale"),
    Planted("ScrubsNaN", "GRAD-7", "was scrubbed"),
    Planted("DividesByMicroSteps", "GRAD-8", "divided by their number once more"),
    Planted("AveragesTheLoss", "LOSS-1", "the forward's results were averaged over the ranks"),
    Planted("BroadcastsTheResult", "LOSS-1", "it is the loss of rank 0's results"),
    Planted("Forgets", "PARAM-3", "it is what the first step started from"),
    Planted("updates_twice", "PARAM-3", "the update was made twice"),
    Planted("RaisesLater", "LIVE-1"),
    Planted("ReducesInTwoWays", "COMM-1"),
    Planted("TakesWhatHasArrived", "COMM-2", "it changes when"),
    Planted("NoWait", "COMM-3", "a wait is missing"),
    Planted("WaitsForTheLastOnly", "COMM-3", "a wait is missing"),
    Planted("ForgetsOneWait", "COMM-3", "a wait is missing"),
    Planted("DividesInFlight", "COMM-3", "a buffer is used before its wait"),
    Planted("CapInMillions", "COMM-4"),
    Planted("TiedHoldsUpAll", "COMM-5"),
    Planted("NeverArmedAgain", "LIVE-2", "never reduced"),
    Planted("SwallowsErrors", "LIVE-2"),
    Planted("GoesOnAlone", "LIVE-3"),
    Planted("LeavesAThread", "LIVE-4"),
)

SAMPLERS = (
    Planted("NoPadding", "SHARD-1", "no padding"),
    Planted("PadsOnce", "SHARD-1", "padded with one slice of itself"),
    Planted("YieldsForEver", "SHARD-1", "it yields without end"),
    Planted("ShardShiftedByOne", "SHARD-1", "off by one"),
    Planted("SamplesWithReplacement", "SHARD-2", "drawn with replacement"),
    Planted("DropsTheTail", "SHARD-2", "samples are dropped although drop_last is off"),
    Planted("IgnoresRank", "SHARD-2", "the rank is ignored"),
    Planted("ShardsTwice", "SHARD-2", "sharded twice"),
    Planted("RanksShuffleDifferently", "SHARD-3", "the ranks shuffle differently"),
    Planted("EpochOnRankZero", "SHARD-3", "set_epoch reaches only some ranks"),
    Planted("PadsWithTheLast", "SHARD-3", "all padding is index"),
    Planted("GlobalGenerator", "SHARD-4", "it draws from the global generator of torch"),
    Planted("RaisesInOneProcess", "SHARD-4", "depends on the hash seed or on a global random generator"),
    Planted("IgnoresEpoch", "SHARD-5", "the epoch is ignored"),
    Planted("UnequalBatches", "SHARD-6", "indices where a share is"),
    Planted("AcceptsAnyRank", "SHARD-7", "no argument is checked"),
)
