#include "runtime/supervisor/pipeline_shape.h"

namespace latentd::supervisor {

std::vector<StageShape> shapesOf(const config::Topology& topology) {
  std::vector<StageShape> shapes(topology.stages.size());
  for (size_t place = 0; place < shapes.size(); ++place) {
    for (const size_t group : topology.stages[place].groups)
      shapes[place].groups.emplace_back(static_cast<uint32_t>(group));
  }
  for (size_t link = 0; link < topology.links.size(); ++link) {
    const config::LinkSpec& spec = topology.links[link];
    shapes[spec.from].outputs.push_back(link);
    shapes[spec.to].inputs.push_back(link);
    if (topology.stages[spec.from].groups.size() > 1) shapes[spec.to].fed_by_replicas = true;
  }
  // From the end: what lies ahead of a stage is known before the stage is looked at.
  for (size_t place = shapes.size(); place-- > 0;) {
    for (const size_t link : shapes[place].outputs) {
      const StageShape& next = shapes[topology.links[link].to];
      if (next.inputs.size() > 1 || next.before_join) shapes[place].before_join = true;
    }
  }
  return shapes;
}

}  // namespace latentd::supervisor
