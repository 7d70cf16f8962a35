#include "tools/ctl/progress.h"

#include <cstdio>
#include <ctime>
#include <memory>
#include <regex>
#include <string>

#include "tests/support/catch.h"

namespace latentd::ctl {
namespace {

// Lines as a log has them: standard error is no terminal.
struct Log {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::tmpfile(), &std::fclose};
  std::unique_ptr<Progress> progress = Progress::create(file.get(), false);

  std::string text() {
    std::rewind(file.get());
    std::string all;
    for (int c = std::fgetc(file.get()); c != EOF; c = std::fgetc(file.get()))
      all += static_cast<char>(c);
    return all;
  }
};

v1::Job running() {
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  for (const char* name : {"text", "denoise"}) {
    v1::StageProgress& stage = *job.add_stages();
    stage.set_stage(name);
    stage.mutable_start_time()->set_seconds(100);  // dispatched together
  }
  job.mutable_stages(0)->mutable_compute_start_time()->set_seconds(100);
  return job;
}

void endText(v1::Job& job) { job.mutable_stages(0)->mutable_finish_time()->set_seconds(102); }

}  // namespace

TEST_CASE("progress: a stage is told to start when it computes, after the end of the one before",
          "[latentctl][progress]") {
  Log log;
  v1::Job job = running();
  log.progress->show(job);
  job.mutable_stages(1)->mutable_compute_start_time()->set_seconds(102);
  log.progress->show(job);  // the daemon has yet to hear of text's end
  endText(job);
  log.progress->show(job);
  CHECK(log.text() == "text: started\ntext: done in 2.00 s\ndenoise: started\n");
}

TEST_CASE("progress: stages that compute beside each other are both told", "[latentctl][progress]") {
  Log log;
  v1::Job job = running();
  job.mutable_stages(1)->mutable_compute_start_time()->set_seconds(100);
  job.mutable_stages(1)->set_step(1);
  log.progress->show(job);
  CHECK(log.text() == "text: started\ndenoise: started\n");
}

// Its first step of four took 1000 s; the log has shown its beginning.
v1::Job denoising(Log& log) {
  v1::Job job = running();
  endText(job);
  v1::StageProgress& denoise = *job.mutable_stages(1);
  denoise.set_steps(4);
  denoise.mutable_compute_start_time()->set_seconds(time(nullptr) - 1000);
  log.progress->show(job);
  denoise.set_step(1);
  return job;
}

TEST_CASE("progress: a log tells what is left of the stage, and in all where that is known", "[latentctl][progress]") {
  Log log;
  v1::Job job = denoising(log);
  log.progress->show(job);
  job.mutable_stages(1)->set_step(4);
  job.mutable_remaining()->set_seconds(7);
  log.progress->show(job);
  const std::string text = log.text();
  CHECK(std::regex_search(text, std::regex("denoise: step 1/4, (49|50):[0-9]{2} left\n")));  // 3 steps of 1000 s
  CHECK(text.find("denoise: step 4/4, 7.00 s in all\n") != std::string::npos);
}

TEST_CASE("progress: no less is left in all than of the stage", "[latentctl][progress]") {
  Log log;
  v1::Job job = denoising(log);
  job.mutable_remaining()->set_seconds(7);
  log.progress->show(job);
  CHECK(std::regex_search(log.text(), std::regex("denoise: step 1/4, ([0-9:]+) left, \\1 in all\n")));
}

TEST_CASE("progress: a log says once what a job waits for, if that lasts", "[latentctl][progress]") {
  Log log;
  v1::Job job = running();
  log.progress->show(job);
  log.progress->tick();
  endText(job);
  log.progress->show(job);
  log.progress->tick();
  log.progress->tick();
  job.mutable_stages(1)->mutable_compute_start_time()->set_seconds(120);
  log.progress->show(job);
  log.progress->tick();
  CHECK(log.text() == "text: started\ntext: done in 2.00 s\nwaiting for denoise\ndenoise: started\n");
}

TEST_CASE("progress: a log says why a job waits, and again when that changes", "[latentctl][progress]") {
  Log log;
  v1::Job job = running();
  endText(job);
  for (const auto reason : {v1::WAIT_REASON_GROUP_BUSY, v1::WAIT_REASON_GROUP_BUSY, v1::WAIT_REASON_GROUP_NOT_READY,
                            v1::WAIT_REASON_UNSPECIFIED}) {
    job.mutable_stages(1)->set_wait_reason(reason);
    log.progress->show(job);
    log.progress->tick();
  }
  CHECK(log.text() ==
        "text: started\ntext: done in 2.00 s\nwaiting for denoise: it runs another job\n"
        "waiting for denoise: its workers start again\n");
}

TEST_CASE("progress: a log says each time what put a job back into the queue", "[latentctl][progress]") {
  Log log;
  v1::Job job;
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_queue_position(1);
  job.mutable_restart_cause()->set_message("g1 died");
  log.progress->show(job);
  job.set_displacements(1);
  log.progress->show(job);
  log.progress->show(job);
  job.set_restarts(1);
  job.mutable_restart_cause()->set_message("g0 died");
  log.progress->show(job);
  CHECK(log.text() ==
        "queued: position 1\ndisplaced: g1 died\nqueued: position 1\nrestarted, displaced: g0 died\n"
        "queued: position 1\n");
}

}  // namespace latentd::ctl
