#include "channel/backend_factory.h"

#include <string>

#include "channel/fake_backend.h"
#include "channel/shm_backend.h"

namespace latentd::channel {

StatusOr<std::shared_ptr<Backend>> makeBackend(std::string_view transport) {
  if (transport == "shm") return makeShmBackend();
  if (transport == "fake") return std::shared_ptr<Backend>(FakeBackend::make());
  return makeStatus(absl::StatusCode::kInvalidArgument,
                    "transport \"" + std::string(transport) + "\" is none of shm, fake");
}

}  // namespace latentd::channel
