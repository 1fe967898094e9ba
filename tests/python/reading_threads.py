"""Calls methods of a run from several threads, and interrupts one. Prints what happened as one JSON object.

Argument: the run. PYTHONPATH has the module.
"""

import json
import signal
import sys
import threading
import time

import dipaco

run = dipaco.Run(sys.argv[1])
prompts = [f"fn main{number}() {{" for number in range(400)]


def texts():
    return [one.text for one in run.generate(prompts, max_tokens=32, temperature=0)]


expected = texts()
found = {}

results = []


def call():
    results.append(texts())


def ticks_during(work):
    """While a thread is in a call, this thread goes on: it ticks in the middle half of the time of the call. With the lock held
    there would be no tick but in the few milliseconds before the call gets the lock."""
    times, ticks = [], []

    def timed():
        times.append(time.monotonic())
        work()
        times.append(time.monotonic())

    thread = threading.Thread(target=timed)
    thread.start()
    while thread.is_alive():
        ticks.append(time.monotonic())
        thread.join(0.001)
    begin, end = times
    quarter = (end - begin) / 4
    return sum(begin + quarter < tick < end - quarter for tick in ticks)


found["ticks"] = ticks_during(call)
# Long enough for many ticks.
long = "".join(f"fn number_{number}() {{}}\n" for number in range(50_000))
found["ticks_of_encode"] = ticks_during(lambda: run.encode(long))

threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
found["same"] = [result == expected for result in results]


class Alarm(Exception):
    pass


def alarm(*_):
    raise Alarm


# Far more work than the time until the signal.
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    run.generate(prompts * 1000, max_tokens=32)
    found["interrupted"] = False
except Alarm:
    found["interrupted"] = True
found["goes_on"] = texts() == expected

print(json.dumps(found))
