"""An IterableDataset that has loaded a state yields only a part of every later iteration."""

from datasets import IterableDataset


def rows(index):
    for number in index:
        yield {"index": number}


def stream():
    return IterableDataset.from_generator(rows, gen_kwargs={"index": [0, 1, 2]})


for consumed in range(3):
    saving = stream()
    running = iter(saving)
    for _ in range(consumed):
        next(running)
    resumed = stream()
    resumed.load_state_dict(saving.state_dict())
    rest = [row["index"] for row in resumed]
    again = [row["index"] for row in resumed]
    print(f"saved after {consumed} of 3: the rest is {rest}, then {again}, expected [0, 1, 2]")
