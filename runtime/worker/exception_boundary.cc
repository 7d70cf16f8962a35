#include "runtime/worker/exception_boundary.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "runtime/worker/process_memory.h"

namespace latentd::worker {
namespace {

Status outOfMemory(const std::string& cause) {
  return absl::ResourceExhaustedError("out of memory: " + cause + "; " + describeMemory());
}

// torch's CPU allocator has no exception type of its own for it.
bool isCpuOutOfMemory(const std::string& text) { return text.find("DefaultCPUAllocator") != std::string::npos; }

// The first line says what happened; the rest is where in torch.
std::string firstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

GuardedResult runGuarded(const std::function<Status()>& work) {
  try {
    return {work(), true};
  } catch (const c10::OutOfMemoryError& error) {
    return {outOfMemory(firstLine(error.what_without_backtrace())), true};
  } catch (const c10::AcceleratorError& error) {
    // A device error is sticky: every later call on the device fails with it.
    return {absl::InternalError(firstLine(error.what_without_backtrace())), false};
  } catch (const c10::Error& error) {
    const std::string text = firstLine(error.what_without_backtrace());
    return {isCpuOutOfMemory(text) ? outOfMemory(text) : Status(absl::InternalError(text)), true};
  } catch (const std::bad_alloc&) {
    return {outOfMemory("an allocation failed"), true};
  } catch (const std::exception& error) {
    // Kernels of torch throw std::runtime_error for it, too.
    const std::string text = firstLine(error.what());
    return {isCpuOutOfMemory(text) ? outOfMemory(text) : Status(absl::InternalError(text)), true};
  } catch (...) {
    return {absl::InternalError("the stage threw something that is no std::exception"), false};
  }
}

}  // namespace latentd::worker
