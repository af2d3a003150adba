"""mmengine's InfiniteSampler yields nothing more once a loop over it was left."""

from itertools import islice

from mmengine.dataset import InfiniteSampler

sampler = InfiniteSampler(range(4), shuffle=False)
for _index in sampler:
    break
print("after a loop was left:", list(islice(sampler, 4)), "expected four indices")
