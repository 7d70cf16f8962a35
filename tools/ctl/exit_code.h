#pragma once

namespace latentd::ctl {

// What the process ends with; listed in --help. A signal ends it with 128 + its number.
enum class ExitCode : int {
  kOk = 0,
  kJobFailed = 1,
  kUsage = 2,         // a bad argument, or a value that the daemon refuses
  kUnreachable = 3,   // no daemon, or it does not answer
  kJobCancelled = 4,  // of drain --wait: it ended the daemon, and jobs were cancelled for that
  kNotFound = 5,
  kRefused = 6,    // not now: queue full, draining, the job is in another state
  kLocalFile = 7,  // the output could not be written, an input not read
  kInternal = 8,
  kTimedOut = 9,  // --wait-timeout
};

constexpr ExitCode exitCodeOfSignal(int signal_number) { return static_cast<ExitCode>(128 + signal_number); }

inline constexpr const char* kExitCodeHelp =
    "Exit codes:\n"
    "  0  success                        5  no such job or result\n"
    "  1  the job failed                 6  refused: queue full, draining, wrong state\n"
    "  2  a bad argument or value        7  a local file could not be read or written\n"
    "  3  no daemon, or no answer        8  an internal error\n"
    "  4  the job was cancelled          9  --wait-timeout passed\n"
    "     (drain --wait: 0 if every job came to its own end, 4 if some were cancelled)\n"
    "  128+N  ended by signal N (Ctrl-C: 130; the reader of -o - went away: 141)\n";

}  // namespace latentd::ctl
