#pragma once
// Waits until what the controller says of servers is what a command needs. A controller that does
// not answer for a while may be back: only the patience ends a wait.
#include <functional>
#include <optional>
#include <string>

#include "cluster/controller_client.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::v1 {
class NodeStatus;
class ListNodesReply;
}  // namespace ems::v1

namespace ems::emsctl {

// How long a command waits: for one answer of the controller, and altogether.
struct Patience {
  Duration call;
  Duration whole;
};

// Of one server. Errors: of the call; kNotFound  it is not known (any more)
Result<v1::NodeStatus> FindNode(ControllerClient* controller, const std::string& name,
                                Deadline deadline);

// Until the server is drained. Errors: kDeadlineExceeded  it is not drained in time
// kFailedPrecondition  another operator has cancelled it
Status AwaitDrained(ControllerClient* controller, const std::string& name,
                    const Patience& patience);

// Until the server has slots again, and all servers have the newest view and what they fetch.
// Errors: kDeadlineExceeded  not in time
Status AwaitSettled(ControllerClient* controller, const std::string& name,
                    const Patience& patience);

// Until `blocker` finds nothing in the way, which it says in a sentence. Errors: kDeadlineExceeded
// not in time, with the last of these
using Blocker =
    std::function<std::optional<std::string>(const v1::ListNodesReply& nodes, const DhtView* view)>;
Status AwaitFree(ControllerClient* controller, const Blocker& blocker, const Patience& patience);

// What a rolling change has to wait for before its next server, of all servers: health that is not
// OK, a view that some do not have, slots that are still being fetched, a drain under way.
std::optional<std::string> UnrestOf(const v1::ListNodesReply& nodes, const DhtView* view);

}  // namespace ems::emsctl
