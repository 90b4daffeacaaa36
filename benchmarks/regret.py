"""draft"""
from __future__ import annotations
import sys, json, time, argparse
from dataclasses import replace, dataclass, field
from functools import lru_cache
import numpy as np
from fsd_calib.certifying.attempts import Ledger
from fsd_calib.certifying.certify import Claim
from fsd_calib.certifying.sealed import Sealed
from fsd_calib.certifying.outcomes import Paired
from fsd_calib.chances import chance_of
from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.progress import Silent
from fsd_calib.searching.bar import Bar
from fsd_calib.searching.keep_accuracy import KeepAccuracy
from fsd_calib.searching.search import freeze, search
from fsd_calib.searching.space import Space
from fsd_calib.wish import Wish
from pooled import TARGET, Pool, PooledForecast
from pooled_calibration import level

@dataclass
class Drawn:
    pool: Pool
    numbers: dict
    decodings: int = 0
    tokens: int = 0
    seen: set = field(default_factory=set)
    def __call__(self, c, problems):
        real=[self.numbers[p.id] for p in problems]
        found=self.pool(c, real)
        for p,row,s in zip(problems, self.pool.rows(c, real), found):
            k=(c.arm,p.id,row) if c.rule!='coupled' else ('coupled',p.id)
            if k not in self.seen:
                self.seen.add(k); self.decodings+=1; self.tokens+=s[0].tokens
        return found

def draw(pool, half, rng, tuning, cert):
    n=len(pool.problems); halves=[np.arange(0,n,2),np.arange(1,n,2)]
    a=np.sort(rng.choice(halves[half],tuning,replace=False)); b=rng.choice(halves[1-half],cert,replace=True)
    numbers={}; out=[]
    for part in (a,b):
        ps=[]
        for i in part:
            p=pool.problems[i]; q=replace(p,id=len(numbers)+1_000_000,prompt=f"{p.prompt} {len(numbers)}")
            numbers[q.id]=p; ps.append(q)
        out.append(ps)
    return Drawn(pool,numbers), out[0], out[1]

class Truth:
    def __init__(self,pool,forecast,space,half):
        n=len(pool.problems); self.problems=np.arange(half,n,2); self.pool=pool
        self.right=pool.target_right[self.problems]
        xs=np.linspace(forecast.lowest,forecast.highest,200)
        self.all=[(self.of(c),c) for fam in space.families for arm in fam for c in [arm.at(t) for t in sorted({0.0}|{forecast.threshold(arm,float(x)) for x in xs})]]
        self.lossless=max(s for (r,s),c in self.all if c.threshold==0.0)
    def of(self,c):
        arm=self.pool.arms[c.divergence,c.draft_length]; rows=arm.rows(self.problems,c.threshold)
        t,r,d=(int(k[rows].sum()) for k in (arm.tokens,arm.rounds,arm.drafted))
        return arm.correct[rows].sum()/self.right.sum(), float(self.pool.costs.tokens_per_second(t,r,d))
    def best(self,w): return max(s for (r,s),c in self.all if r>=w)

def one(pool,forecast,space,wanted,seed,cert,truths,tuning=900,verbose=False):
    half=seed%2; rng=np.random.default_rng(seed)
    decode,tune,certify=draw(pool,half,rng,tuning,cert)
    bench=Bench(decode,tune,'tuning')
    alone=bench.measure(TARGET)
    lossless=bench.measure(Configuration('coupled',space.divergences[0],max(space.draft_lengths[:2])),256)
    before=decode.tokens
    delta=level(.95); wish=Wish(min_acc=wanted)
    s0=truths[half].lossless
    bar=Bar(wanted,alone.accuracy,len(tune),len(certify),delta)
    goal=KeepAccuracy(chance_of(wish,len(certify),delta),f'{wanted}',bar,s0)
    t=time.time()
    searched=search(bench,alone,forecast,space,goal,None,'pool',30,Silent())
    t1=time.time()
    st=decode.tokens
    frozen=freeze(searched,space,bench,alone,forecast,goal)
    fz=decode.tokens
    t2=time.time()
    worth=[c for c in frozen if goal.chance(bench.measure(c),alone)>=.02]
    truth=truths[1-half]
    cb=Bench(decode,certify,'certification')
    passed=None; ps=[]
    if worth:
        with Ledger(None) as ledger:
            ledger.tuned_on('pool',tune)
            v=Sealed(cb,ledger,'pool','').open(worth,TARGET,Claim(wanted,problems=cert),.95).decide()
        passed=None if v.passed is None else worth[v.passed]
    ct=decode.tokens
    claim=Claim(wanted,problems=cert)
    table=20*(len(tune)+len(certify))*65
    speed=truth.lossless if passed is None else truth.of(passed)[1]
    res=dict(ratio=speed/truth.best(wanted), false=passed is not None and truth.of(passed)[0]<wanted, tokens=(ct-before)/table, search=(st-before)/table, fz=(fz-st)/table, trials=len(searched.tried), passed=str(passed), rungs=[(str(c), [round(float(z),4) for z in truth.of(c)]) for c in worth], sec=(t1-t,t2-t1))
    if verbose:
        for x in searched.tried: print('   ',x.configuration,round(x.logit_share,2),x.problems,round(x.retention,4),round(x.tokens_per_second),x.feasible)
    return res

if __name__=='__main__':
    runs=int(sys.argv[1]); ws=[float(x) for x in sys.argv[2].split(',')]; cert=int(sys.argv[3]); verbose=len(sys.argv)>4
    pool=Pool(); 
    pool.arms={k:v for k,v in pool.arms.items()}
    pool._alone=pool._alone[:5000]; pool.target_right=pool.target_right[:5000]
    forecast=PooledForecast(pool); space=Space(('fsd-coupled',),('doubt','js'),tuple(sorted({l for _,l in pool.arms})))
    truths=[Truth(pool,forecast,space,h) for h in (0,1)]
    for w in ws:
        rs=[]
        for s in range(runs):
            r=one(pool,forecast,space,w,s,cert,truths,verbose=verbose); rs.append(r)
            if runs<=12: print(w,s,{k:(v if not isinstance(v,float) else round(v,3)) for k,v in r.items() if k not in('rungs',)}); [print('      ',x) for x in r['rungs']]
        q=np.array([r['ratio'] for r in rs])
        print(w,'ratio med %.3f p10 %.3f mean %.3f'%(np.median(q),np.quantile(q,.1),q.mean()),'false',np.mean([r['false'] for r in rs]),'tokens',np.median([r['tokens'] for r in rs]),'search',np.median([r['search'] for r in rs]),'fz',np.median([r['fz'] for r in rs]),'trials',np.median([r['trials'] for r in rs]),'none',np.mean([r['passed']=='None' for r in rs]),'rungs',np.mean([len(r['rungs']) for r in rs]),'sec',np.mean([r['sec'] for r in rs],0),flush=True)
