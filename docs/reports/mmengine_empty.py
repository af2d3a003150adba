"""mmengine's DefaultSampler divides by zero if the dataset is empty."""

from mmengine.dataset import DefaultSampler

for round_up in (False, True):
    try:
        print(f"{round_up=}: {list(DefaultSampler([], shuffle=False, round_up=round_up))}")
    except ZeroDivisionError as error:
        print(f"{round_up=}: ZeroDivisionError: {error}, expected []")
