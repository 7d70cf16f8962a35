"""A client of latentd in Python: submits a prompt, follows the job, downloads the video; Ctrl-C cancels.

Any Python with grpcio and grpcio-tools runs it; .deps/venv/bin/python has both after tools/setup.
Stubs, once, from the root of the repository:
    mkdir -p out/python
    .deps/venv/bin/python -m grpc_tools.protoc -I. --python_out=out/python --grpc_python_out=out/python \\
        proto/common.proto proto/api.proto
Then:
    PYTHONPATH=out/python .deps/venv/bin/python tools/python/client_example.py "a red circle moving left" circle.mp4
"""
import argparse
import os
import signal
import sys
import threading

import grpc

from proto import api_pb2, api_pb2_grpc

ANSWER_SECONDS = 10  # a call that only asks must be answered within this


def submit(jobs, prompt, steps):
    parameters = api_pb2.JobParameters(prompt=prompt, format=api_pb2.OUTPUT_FORMAT_MP4)
    if steps:
        parameters.steps = steps  # what is not set is the model's default, and is echoed in the job
    return jobs.Submit(api_pb2.SubmitRequest(parameters=parameters), timeout=ANSWER_SECONDS)


def state_of(job):
    return api_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()


def where(job):
    """The stage that works: the last one that has its inputs. Later ones were dispatched and wait for theirs."""
    begun = [stage for stage in job.stages if stage.HasField("compute_start_time")]
    if not begun:
        return f"position {job.queue_position}" if job.queue_position else "starting"
    return f"{begun[-1].stage} {begun[-1].step}/{begun[-1].steps}"


def follow(jobs, job_id):
    """The job after its last change."""
    job = None
    for job in jobs.Watch(api_pb2.WatchJobRequest(id=job_id)):
        print(f"{state_of(job)}: {where(job)}", file=sys.stderr)
    return job


def download(jobs, job_id, path):
    with open(path, "wb") as file:
        for chunk in jobs.Download(api_pb2.DownloadRequest(id=job_id)):
            file.write(chunk.data)


def cancel(jobs, job_id):
    try:
        jobs.Cancel(api_pb2.CancelJobRequest(id=job_id), timeout=ANSWER_SECONDS)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.FAILED_PRECONDITION:  # it had ended already
            raise


def run(jobs, arguments):
    job = submit(jobs, arguments.prompt, arguments.steps)
    print(f"job {job.id}: seed {job.parameters.seed}", file=sys.stderr)
    cancels = []

    def cancel_after(seconds):
        cancels.append(threading.Timer(seconds, cancel, (jobs, job_id)))
        cancels[-1].start()

    job_id = job.id
    if arguments.time_limit:
        cancel_after(arguments.time_limit)
    # Not by a KeyboardInterrupt: raised inside grpcio, it can leave a lock of the channel taken.
    signal.signal(signal.SIGINT, lambda *_: cancel_after(0))
    try:
        job = follow(jobs, job_id)
    finally:
        for timer in cancels:
            timer.cancel()
            timer.join()  # a call of its own may still wait for its answer: the channel must outlive it
    if job.state != api_pb2.JOB_STATE_SUCCEEDED:
        print(f"job {job.id} {state_of(job)}: {job.error.message}", file=sys.stderr)
        return 1
    download(jobs, job.id, arguments.output)
    print(arguments.output)
    return 0


def main():
    parser = argparse.ArgumentParser(description="Makes a video with latentd.")
    parser.add_argument("prompt")
    parser.add_argument("output", help="the .mp4 file to write")
    parser.add_argument("--endpoint", default=os.environ.get("LATENTD_ENDPOINT") or "127.0.0.1:7411",
                        help="the daemon; default: LATENTD_ENDPOINT, else 127.0.0.1:7411")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=0, metavar="SECONDS", help="cancel the job after this time")
    arguments = parser.parse_args()
    with grpc.insecure_channel(arguments.endpoint) as channel:
        try:
            return run(api_pb2_grpc.JobsStub(channel), arguments)
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
