#include "mp_controller/publish/view_fanout.h"

namespace ems::controller {

ViewFanout::ViewFanout(ViewPublisher* publisher)
    : thread_("ems-fanout", [publisher] {
        uint64_t seen = 0;
        while (publisher->AwaitChange(&seen)) publisher->NotifyAll();
      }) {}

}  // namespace ems::controller
