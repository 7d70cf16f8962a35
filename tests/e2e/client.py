"""The public API from Python, for tests: messages and stubs made from proto/ at run time."""
import io
import pathlib
import sys

import grpc
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
api, services = grpc.protos_and_services("proto/api.proto")

TERMINAL = {api.JOB_STATE_SUCCEEDED, api.JOB_STATE_FAILED, api.JOB_STATE_CANCELLED}


class Client:
    def __init__(self, endpoint):
        self.channel = grpc.insecure_channel(endpoint)
        self.jobs = services.JobsStub(self.channel)
        self.admin = services.AdminStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.channel.close()

    def submit(self, prompt="a red ball", timeout=30, priority=0, retries=0, **parameters):
        parameters.setdefault("format", api.OUTPUT_FORMAT_NPY)
        request = api.SubmitRequest(parameters=api.JobParameters(prompt=prompt, **parameters), priority=priority, retries=retries)
        return self.jobs.Submit(request, timeout=timeout)

    def get(self, job_id):
        return self.jobs.Get(api.GetJobRequest(id=job_id), timeout=30)

    def cancel(self, job_id):
        return self.jobs.Cancel(api.CancelJobRequest(id=job_id), timeout=30)

    def wait(self, job_id, timeout=180):
        """The job in its terminal state."""
        for job in self.watch(job_id, timeout):
            if job.state in TERMINAL:
                return job
        raise AssertionError("the watch ended before the job did")

    def watch(self, job_id, timeout=180):
        """The job's states, from the present one on; none is left out once the first has come."""
        return self.jobs.Watch(api.WatchJobRequest(id=job_id), timeout=timeout)

    def watch_until(self, job_id, condition, timeout=180):
        """The first state of the job for which condition(job) holds."""
        stream = self.watch(job_id, timeout)
        try:
            for job in stream:
                if condition(job):
                    return job
                if job.state in TERMINAL:
                    raise AssertionError(f"the job ended first: {job}")
        finally:
            stream.cancel()
        raise AssertionError("the watch ended")

    def download(self, job_id):
        return b"".join(chunk.data for chunk in self.jobs.Download(api.DownloadRequest(id=job_id), timeout=180))

    def video(self, job_id):
        """The pixels of a job in NPY, frames x height x width x 3."""
        return numpy.load(io.BytesIO(self.download(job_id)))


def bad_fields_of(call):
    """The fields that the details of call()'s error name, each with what is wrong with it."""
    rpc_status = grpc.protos("proto/rpc_status.proto")
    try:
        call()
    except grpc.RpcError as error:
        details = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
        status = rpc_status.RpcStatus.FromString(details[0]) if details else rpc_status.RpcStatus()
        assert not details or (status.code, status.message) == (error.code().value[0], error.details()), status
        assert all(detail.type_url == "type.googleapis.com/google.rpc.BadRequest" for detail in status.details), status
        return [(violation.field, violation.description) for detail in status.details
                for violation in rpc_status.BadRequest.FromString(detail.value).field_violations]
    raise AssertionError("the call succeeded")


def code_of(call):
    """The gRPC status code and text with which call() fails."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the call succeeded")
