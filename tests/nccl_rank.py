"""One rank of NCCL's stand-in, without torch: `nccl_rank.py FOLDER RANK RANKS TEXT TIMES` sums TIMES times."""

import ctypes
import os
import sys
from pathlib import Path

FLOAT, SUM = 7, 0  # of nccl.h


class UniqueId(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 128)]


def main(folder: str, rank: int, ranks: int, text: str, times: int) -> None:
    ctypes.CDLL(str(next(Path(folder).glob("libcudart.so.*"))), mode=ctypes.RTLD_GLOBAL)
    nccl = ctypes.CDLL(str(next(Path(folder).glob("libnccl.so.*"))))
    nccl.ncclGetLastError.restype = ctypes.c_char_p

    def must(result: int) -> None:
        if result:
            print(f"{result}: {nccl.ncclGetLastError(None).decode()}", flush=True)
            os._exit(7)

    comm, values = ctypes.c_void_p(), (ctypes.c_float * 5000)()
    must(nccl.ncclCommInitRank(ctypes.byref(comm), ranks, UniqueId(text.encode()), rank))
    print("joined", flush=True)
    for turn in range(times):
        values[0], values[4999] = rank, turn
        must(nccl.ncclAllReduce(values, values, ctypes.c_size_t(5000), FLOAT, SUM, comm, None))
        if (values[0], values[4999]) != (sum(range(ranks)), turn * ranks):
            print(f"wrong sums: {values[0]}, {values[4999]}", flush=True)
            os._exit(8)
    nccl.ncclCommDestroy(comm)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
