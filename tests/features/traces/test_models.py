from dataclasses import replace

from ricordo.api.models.runs import RunMetricsResponse
from ricordo.domain.run import Trace
from ricordo.features.traces.models import TraceResponse
from tests.seams import make
from tests.seams.http import require_fits
from tests.seams.stores import START

RUN = make.run(make.agent())


def test_a_trace_fits_its_shape_with_and_without_an_answer() -> None:
    step = make.step(RUN, model_ns=2_500_000)
    for response, shown in (('{"finish":"stop"}', {"finish": "stop"}), (None, {})):
        wire = TraceResponse.from_trace(
            Trace(step.id, RUN.id, "org-1", '{"a":[1]}', response, START), step, replace(RUN, user_id="user-1")
        )
        require_fits(TraceResponse, wire)
        assert (wire["request_json"], wire["response_json"]) == ({"a": [1]}, shown)
        assert (wire["latency_ms"], wire["user_id"]) == (2, "user-1")
        assert wire["llm_config"] == {"model": "model", "handle": "scripted/model", "model_endpoint": None}


def test_the_trace_of_a_call_that_wrote_a_summary_tells_its_model_without_a_step() -> None:
    asked = '{"model":"scripted/model","endpoint":null}'
    wire = TraceResponse.from_trace(Trace("step-1", RUN.id, "org-1", asked, "{}", START), None, RUN)
    require_fits(TraceResponse, wire)
    assert (wire["call_type"], wire["agent_id"], wire["latency_ms"]) == ("summarization", RUN.agent_id, None)
    assert wire["llm_config"]["handle"] == "scripted/model"


def test_metrics_of_an_open_run_and_of_one_that_ended_fit_their_shape() -> None:
    for run in (RUN, make.run(make.agent(), duration_ns=7, step_count=2)):
        wire = RunMetricsResponse.from_run(run, ["tool-1"])
        require_fits(RunMetricsResponse, wire)
        assert (wire["run_start_ns"], wire["run_ns"], wire["num_steps"]) == (
            START * 1000,
            run.duration_ns,
            run.step_count,
        )
