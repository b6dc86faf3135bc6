"""hnswlib over what the example `vectors` left in a folder: building, and recall against queries a second.

    pip install hnswlib numpy
    python3 benches/vectors_hnswlib.py FOLDER [DIMENSIONS]

One thread, batches of 50 queries, all widths by turns, medians of five rounds; 384 dimensions unless said otherwise. Its defaults
when building: 16 neighbours, 200 candidates.
"""

import pathlib
import statistics
import sys
import time

import hnswlib
import numpy

WIDTHS = (16, 24, 32, 48, 64, 128, 256)
TURN, ROUNDS, NEAREST = 50, 5, 10


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    dimensions = int(sys.argv[2]) if len(sys.argv) > 2 else 384
    vectors, queries = (
        numpy.fromfile(folder / name, "<f4").reshape(-1, dimensions) for name in ("vectors.f32", "queries.f32")
    )
    truth = [set(row) for row in numpy.fromfile(folder / "truth.u64", "<u8").reshape(-1, NEAREST).tolist()]

    began = time.process_time()
    index = hnswlib.Index(space="cosine", dim=dimensions)
    index.init_index(max_elements=len(vectors), M=16, ef_construction=200)
    index.set_num_threads(1)
    index.add_items(vectors, num_threads=1)
    print(f"hnswlib: built, processor {time.process_time() - began:.1f} s")

    rates = {width: [] for width in WIDTHS}
    found = {width: [] for width in WIDTHS}
    for number in range(ROUNDS):
        took = dict.fromkeys(WIDTHS, 0.0)
        for start in range(0, len(queries), TURN):
            for width in WIDTHS:
                index.set_ef(width)
                began = time.perf_counter()
                near, _ = index.knn_query(queries[start : start + TURN], k=NEAREST, num_threads=1)
                took[width] += time.perf_counter() - began
                if number == 0:
                    found[width].extend(near.tolist())
        for width in WIDTHS:
            rates[width].append(len(queries) / took[width])
    for width in WIDTHS:
        hits = sum(len(wanted.intersection(near)) for near, wanted in zip(found[width], truth))
        print(
            f"hnswlib, width {width:3}  recall@10 {hits / sum(map(len, truth)):.4f}  "
            f"{statistics.median(rates[width]):8.0f}/s ({min(rates[width]):.0f} to {max(rates[width]):.0f})"
        )


if __name__ == "__main__":
    main()
